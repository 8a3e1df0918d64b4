"""Plans a job: variants, order of launches, hosts, time and cost (pure)."""
