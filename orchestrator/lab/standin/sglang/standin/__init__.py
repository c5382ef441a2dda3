"""How the stand-in works inside; nothing here exists in the real package."""
