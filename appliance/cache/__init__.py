"""The compile cache: what vLLM, inductor, Triton and our kernels compiled, kept over restarts and proven before use.

In the folder of the setting `cache_dir`:

    generations/KEY/            one generation, made by one image for one kind of GPU, one model and one plan
        vllm/ inductor/ triton/ cuda/ sm70/
        use.json                who uses it: boot, process, times, how many starts died on it
        stamp.json              there when it is sealed: every file's size and SHA-256, the key's parts, greedy tokens
    locks/KEY.use, KEY.gate     flock: shared by those who use it, exclusive for a decision about it

**In it** is what a compiler made and another start of the same key can load: vLLM's graphs, inductor's code, Triton's
cubins, kernels compiled at their first use. **Not in it** are weights, tokenizers, and the caches of Hugging Face,
matplotlib, numba and HOME, which stay under state_dir.

Three kinds of file are used and never sealed nor exported. The driver's cache (`cuda/`) changes its index in place, so
no hash could fit for long; vLLM's answer to which GPUs reach each other is true for one machine only; and
`cache_key_factors.json`, which vLLM writes and never reads, may hold the API's key. The first two do not outlive a
boot, the last is removed when a generation is opened or sealed.

A generation is not written under another name and renamed when it is whole: inductor's and Triton's artefacts hold
absolute paths, and a running engine has the folder's name in its environment. It is the stamp that is written under
another name, brought to the disk and renamed. For the same reason a generation is for the folder that it was made in,
and an import into another one is refused.

A stamp proves that files are as the engine left them when it was ready. It does not prove who wrote them: whoever may
write to the folder may run code in the engine, as with any compile cache.
"""
