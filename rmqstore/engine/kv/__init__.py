"""Key-ordered databases: what one must give, and what all of them share."""
