"""Engines that the suite itself is tried on: one that declares nothing optional, and many that are wrong."""
