"""The changes to SGLang, one file each."""
