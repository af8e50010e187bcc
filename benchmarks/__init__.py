"""Programs that measure tracelens and make the files it is measured on."""
