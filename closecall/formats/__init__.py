"""Judged sets in the forms that others keep them in: read into the native layout (`importer`), written back (`writers`).

`tables` reads files of rows, `columns` says what their columns are, `parts` makes documents, queries and judgments of
them; `topics` (TREC), `engines` (Quepid, OpenSearch, Elasticsearch, LTR) and `hub` (Hugging Face, ir_datasets) read
what is no table; `source` tells which of them a file or folder is; `chunks` moves judgments between documents and
their chunks.
"""
