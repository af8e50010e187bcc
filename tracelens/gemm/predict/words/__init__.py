"""The sentences of predictions: made of the values they are given, nothing is computed here."""
