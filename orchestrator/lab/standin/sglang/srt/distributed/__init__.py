"""Of SGLang's ``srt/distributed`` only the gate."""
