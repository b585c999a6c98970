"""How Millrace is run: locally, in containers, on Kubernetes, by systemd and cron, and watched."""
