"""What the exports and imports of both sides share."""
