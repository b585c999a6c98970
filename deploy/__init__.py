"""How Millrace is run: locally, in containers, by systemd and cron, and watched."""
