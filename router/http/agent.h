/*
 * Answers of the APIs of agents, which consist of blocks: reasoning, text, calls of tools. Inside of the answer (openai_answer.c):
 * outputs become blocks here, and a shape makes events and the document of them: responses_answer.c and messages_answer.c.
 *
 * What is told to a shape, in this order: begin; for each block open, deltas, close; end. Of a document only `document` is called.
 */
#ifndef SL_ROUTER_HTTP_AGENT_H
#define SL_ROUTER_HTTP_AGENT_H

#include "router/http/openai_answer_impl.h"

typedef enum { OAI_BLOCK_THINKING, OAI_BLOCK_TEXT, OAI_BLOCK_CALL } oai_block_kind;

typedef struct oai_block {
    oai_block_kind kind;
    char id[48];    /* of the block; of a call: what its result names */
    sl_strbuf name; /* of the tool */
    sl_strbuf text; /* or arguments */
} oai_block;

typedef struct oai_agent_shape {
    const char *ids[3]; /* what ids of the kinds of blocks begin with */
    void (*begin)(sl_oai_answer *a);
    void (*open)(sl_oai_answer *a, size_t i);
    void (*delta)(sl_oai_answer *a, size_t i, const char *text, size_t len);
    void (*close)(sl_oai_answer *a, size_t i);
    void (*end)(sl_oai_answer *a);
    void (*error)(sl_oai_answer *a, sl_status st, const char *error);
    char *(*document)(sl_oai_answer *a);
} oai_agent_shape;

struct oai_agent {
    const oai_agent_shape *shape;
    oai_block *blocks;
    size_t n;
    bool begun, open; /* open: the last block gets more */
    uint64_t events;
    sl_strbuf shown; /* sl_oai_request.shown */
};

extern const oai_agent_shape oai_responses_shape, oai_messages_shape;

/* NULL for an API that has no blocks; *shown is taken. SL_ERR_NO_MEMORY. */
sl_status oai_agent_create(sl_oai_api api, sl_strbuf *shown, struct oai_agent **out);
void oai_agent_free(struct oai_agent *g);
void oai_agent_output(sl_oai_answer *a, const sl_output *o);
/* Whether the model has called a tool. */
bool oai_agent_called(const sl_oai_answer *a);

/* Appends "event: NAME" and the beginning of its data, an object with "type":NAME that is not closed; and its end. */
void oai_agent_event(sl_oai_answer *a, const char *name);
void oai_agent_event_end(sl_oai_answer *a);
/* Appends ,"key":"text" */
void oai_agent_member(sl_strbuf *out, const char *key, const char *text, size_t len);

#endif
