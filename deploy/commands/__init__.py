"""The commands of `millrace`; `app.COMMANDS` says which module has which."""
