"""What a report says of what it does not hold."""

NOT_HELD = "this report does not hold it"
NOT_SAID = "this report does not say"
NOT_ASKED = "not asked for"
