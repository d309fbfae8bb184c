"""For block authors: new blocks, building, recorded conversations, checks."""
