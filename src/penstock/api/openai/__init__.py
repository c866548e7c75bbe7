"""The words of OpenAI's clients: files and vector stores, under `/v1`."""

from penstock.api.openai import file_batches, files, others, store_files, vector_stores

PREFIX = "/v1"
ROUTERS = (files.router, vector_stores.router, store_files.router, file_batches.router, others.router)
