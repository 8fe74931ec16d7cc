# Which room may include which: data for scripts/check-deps. A room may always include itself.
#
#   ROOM: rooms whose headers it may include; room/header.h allows that header only
#   only FOLDER…: system headers (shell patterns) that may appear nowhere else
#
# prefill, decode and router never include each other; what they share is a message in base/.

base:
kernels:   base
collectives: base kernels
model:     base kernels collectives
sparse:    base kernels
transport: base
kvstore:   base kernels/params.h kernels/cache.h kernels/rowsum.h
engine:    base kernels collectives model sparse kvstore
events:    base
worker:    base kernels collectives model sparse transport kvstore engine
prefill:   base kernels model sparse transport kvstore engine worker
decode:    base kernels model sparse transport kvstore engine worker events
router:    base model transport kvstore/page_key.h kvstore/domain.h kvstore/arena.h kvstore/snapshot.h
local:     base kernels model sparse kvstore engine
eval:      base kernels model sparse engine local
bench:     base kernels collectives model sparse transport kvstore engine worker prefill decode router local
simulate:  base kernels/params.h kernels/cache.h model transport kvstore router worker/prompt_queue.h worker/stall.h decode/core/admission.h decode/core/effects.h
cli:       base kernels collectives model sparse transport kvstore events engine worker prefill decode router local bench simulate eval

only transport/ucx:    ucp/* uct/* ucs/*
only transport/launch: mpi.h
only kernels/cuda collectives/cuda: cuda* cooperative_groups*
only kernels/cuda:     cublas* cub/* thrust/* mma.h
only collectives/cuda: nccl*
only kvstore:          linux/io_uring.h hiredis/*
only events:           zmq.h
only transport:        infiniband/* rdma/*
