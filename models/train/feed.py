"""Batches of documents, made by worker processes, so that the device never waits for them.

A job is a plan, a number of rows and a seed; its batch depends on nothing else, so batches are the same with any number of
workers. Results are taken in the order of submission.
"""
import concurrent.futures
import multiprocessing

import numpy
import torch

from documents import Maker
from language import Language

_maker = None


def _start(family):
    global _maker
    torch.set_num_threads(1)
    _maker = Maker(Language(family), "cpu")


def _make(plan, rows, seed):
    ids, grades = _maker.batch(plan, rows, seed)
    return ids.numpy().astype(numpy.int16), grades.numpy()


class Feeder:
    """Make it before the first use of a GPU: the workers are forked. workers 0: batches are made by the caller."""

    def __init__(self, family, workers, device):
        self.device, self.pool = device, None
        if workers:
            context = multiprocessing.get_context("fork")
            self.pool = concurrent.futures.ProcessPoolExecutor(workers, context, _start, (family,))
            self.pool.submit(int).result()
        else:
            _start(family)

    def submit(self, plan, rows, seed):
        """A handle for get()."""
        return self.pool.submit(_make, plan, rows, seed) if self.pool else (plan, rows, seed)

    def get(self, handle):
        """ids (int64) and grades (uint8), [rows][plan.length], on the device."""
        made = handle.result() if self.pool else _make(*handle)
        ids, grades = (torch.from_numpy(a) for a in made)
        if self.device.type == "cuda":
            ids, grades = ids.pin_memory(), grades.pin_memory()
        return ids.to(self.device, non_blocking=True).long(), grades.to(self.device, non_blocking=True)

    def close(self):
        if self.pool:
            self.pool.shutdown(wait=False, cancel_futures=True)
