"""What tests of several folders need."""
