"""YAML recipes: loading, parameters, validation, and finding the pipeline that a command line names."""

from __future__ import annotations

from cloudshard.recipe.load import Recipe, Summary, load_recipe
from cloudshard.recipe.target import resolve_target

__all__ = ["Recipe", "Summary", "load_recipe", "resolve_target"]
