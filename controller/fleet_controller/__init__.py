"""Plans jobs, schedules trials over agents, keeps their results and compares them."""
