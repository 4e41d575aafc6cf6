"""How far a judged set can be trusted: what is odd about its size, judgments, copies, wording and grades.

`survey` asks all checks; each takes the `material` and makes a `finding` of it.
"""
