"""One screen per file. Each displays the result of a view: no SQL and no arithmetic here."""
