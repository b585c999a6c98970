"""Ways to run Millrace: locally, in containers, by systemd and cron; and to monitor it."""
