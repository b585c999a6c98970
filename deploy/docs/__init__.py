"""Pages → the website, and the page that is made from the command line's own help.

Only a clone has this. `make docs` builds the site from `mkdocs.yml` and `hooks`, with the packages
that are locked here, in an environment of its own. `commands` writes docs/reference/commands.md.
"""
