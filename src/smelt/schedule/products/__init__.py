"""Matrix products and convolutions as nests."""
