"""WHAT travels: one file a topic, the records, their versions and codecs."""
