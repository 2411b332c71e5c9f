"""Sends batches to one of several services until it is definite what became of each.

`targets` says where the services are and `pool` which of them is used now; `requests` asks one
of them once; `delivery` has the queues of the files and the threads that send.
"""
