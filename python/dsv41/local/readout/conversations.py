"""The conversations that the output head is fitted to: every one of `dsv41.questions.FITTED`, encoded.

The questions are shared with `dsv41 smoke`; they live in dsv41/questions.py, which may be edited there
(for another wording or answer), never repeated here.
"""
