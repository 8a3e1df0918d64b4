"""Plans a job: its variants, the order of launches, the hosts, the time and the cost (pure)."""
