"""The embedded lab: an SSH server and a stand-in SGLang on this machine, as ordinary processes of the user.

No root, no GPU, nothing installed outside one folder. It is what a newcomer plays with and what the demonstration runs on.
"""
