"""The machinery of the course: everything that is derived from the engine is derived here."""
