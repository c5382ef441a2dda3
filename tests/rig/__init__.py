"""Real parts to test on: an LXC container with systemd and sshd, a bare host around it, and the real SGLang on CPU in it."""
