/*
 * Queues of elements that are linked by their field `next`: first in, first out, without memory of their own. The queue borrows its
 * elements, an element is in one queue at a time, and whoever has the queue decides about the lock.
 *
 *   SL_LIST(job) queue;
 *   sl_list_init(&queue);
 *   sl_list_push(&queue, job);
 *   while ((job = queue.head)) { sl_list_pop(&queue); ... }
 *
 * The arguments of the macros are evaluated more than once.
 */
#ifndef SL_BASE_LIST_H
#define SL_BASE_LIST_H

#include <stddef.h>

/* The type of a queue of elements of this type. tail: where the next element is linked. */
#define SL_LIST(type)                                                                                        \
    struct {                                                                                                 \
        type *head, **tail;                                                                                  \
    }

/* Makes the queue empty; its elements are not touched. A queue is initialised before it is used, and not copied. */
#define sl_list_init(list) ((void)((list)->head = NULL, (list)->tail = &(list)->head))
/* Appends an element. */
#define sl_list_push(list, element)                                                                          \
    ((void)((element)->next = NULL, *(list)->tail = (element), (list)->tail = &(element)->next))
/* Takes the first element out of a queue that is not empty. */
#define sl_list_pop(list) ((void)(((list)->head = (list)->head->next) || ((list)->tail = &(list)->head)))

#endif
