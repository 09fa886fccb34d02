"""Executes a stage's steps over blocks of rows inside one process."""
