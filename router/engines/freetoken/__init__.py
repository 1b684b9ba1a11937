"""FreeToken with read isolation: hooks on the FreeToken that the user has installed. docs/engines-freetoken.md.

A read (log-probabilities wanted, one token) runs alone in its prefill pass, its chunks too, and neither reads nor
fills the prefix cache. Everything else keeps its path. FreeToken runs in three kinds of process, and each gets its
own hooks before FreeToken's code starts in it: `api`, `tokenizer` and `scheduler`; `launch` puts them there.

Nothing here imports FreeToken or torch until a process is about to serve.
"""
