"""Times on a card that is not at hand, by roofline."""
