"""Pages → the website, and the page that is made from the command line's own help.

Only a clone has this: `make docs` builds the site with `hooks` and the locked packages of
`requirements.txt`; `commands` writes docs/reference/commands.md.
"""
