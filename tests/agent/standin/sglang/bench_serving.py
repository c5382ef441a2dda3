"""A stand-in for SGLang's benchmark client: it only sleeps."""

import time

if __name__ == "__main__":
    time.sleep(300)
