"""Plans jobs, schedules trials over agents, keeps their results and judges them. Never imports the
agent.
"""
