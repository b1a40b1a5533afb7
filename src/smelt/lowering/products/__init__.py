"""Matrix products, convolutions, attention."""
