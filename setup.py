"""Puts `conf/` and `recipes/`, which are next to the package in a checkout, inside it when installed."""

from setuptools import find_packages, setup

DATA = [
    "**/*.yaml",
    "**/*.py",
    "**/*.json",
    "**/*.jsonl",
    "**/*.txt",
    "**/*.md",
    "**/*.j2",
    "**/*.css",
    "**/*.js",
    "**/completion.*",
    "py.typed",
]

setup(
    packages=[*find_packages(include=["runner", "runner.*"]), "runner.conf", "runner.recipes"],
    package_dir={"runner.conf": "conf", "runner.recipes": "recipes"},
    package_data={"": DATA},
    include_package_data=False,
)
