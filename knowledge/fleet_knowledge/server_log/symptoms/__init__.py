"""Holds tables of the lines that servers, drivers and hosts print when something fails."""
