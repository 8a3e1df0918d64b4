"""Holds the jobs and their trials in memory, and writes every change to the store first."""
