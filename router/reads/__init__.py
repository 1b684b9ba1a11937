"""What a read is, how it gets its turn, and how a list of prompts becomes single reads. No I/O here."""
