/*
 * Which JSON types a JSON schema allows for a property of an object: `type`, `enum`, `const`, `anyOf`, `oneOf`, `allOf`
 * and references within the schema; and the schemas of members and items. GLM writes the arguments of a call without
 * their types, so only the schema tells whether 12 is a number or a text. Anything else in a schema is ignored: this is
 * no validator.
 *
 * A schema comes from a client and may refer to itself, so at most MAX_NODES nodes are read; a schema that needs more
 * allows all types.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/chat_impl.h"

enum { MAX_NODES = 256 };

typedef struct reader {
    const json_t *root; /* to which references are relative */
    int left;           /* nodes that may still be read */
} reader;

static unsigned type_named(const char *name)
{
    static const struct {
        const char *name;
        unsigned type;
    } known[] = {
        {"null", CT_NULL},       {"boolean", CT_BOOLEAN},
        {"integer", CT_INTEGER}, {"number", CT_NUMBER | CT_INTEGER},
        {"string", CT_STRING},   {"array", CT_ARRAY},
        {"object", CT_OBJECT},
    };
    for (size_t i = 0; name && i < SL_COUNT(known); i++) {
        if (strcmp(known[i].name, name) == 0)
            return known[i].type;
    }
    return CT_ANY;
}

unsigned ct_type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL:
        return CT_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return CT_BOOLEAN;
    case JSON_INTEGER:
        return CT_INTEGER;
    case JSON_REAL:
        return json_real_value(v) == floor(json_real_value(v)) ? CT_INTEGER : CT_NUMBER;
    case JSON_STRING:
        return CT_STRING;
    case JSON_ARRAY:
        return CT_ARRAY;
    case JSON_OBJECT:
        break;
    }
    return CT_OBJECT;
}

/* The node to which a reference such as "#/$defs/Color" points; NULL: none, or it is outside of this schema. */
static const json_t *resolve(const json_t *root, const char *ref)
{
    if (strncmp(ref, "#", 1) != 0)
        return NULL;
    const json_t *at = root;
    for (ref++; at && *ref == '/';) {
        size_t n = strcspn(++ref, "/");
        at = json_object_getn(at, ref, n);
        ref += n;
    }
    return *ref ? NULL : at;
}

static unsigned types_of(reader *r, const json_t *schema);

/* The types that at least one of the alternatives allows. */
static unsigned any_of(reader *r, const json_t *alternatives)
{
    size_t i;
    json_t *one;
    unsigned types = 0;
    json_array_foreach(alternatives, i, one)
    {
        types |= types_of(r, one);
    }
    return types ? types : CT_ANY;
}

/* The types of the keys `type`, `enum` and `const`. */
static unsigned own_types(const json_t *schema)
{
    unsigned types = CT_ANY, listed = 0;
    size_t i;
    json_t *v;
    const json_t *type = json_object_get(schema, "type"), *constant = json_object_get(schema, "const");
    if (json_is_string(type))
        types = type_named(json_string_value(type));
    json_array_foreach(type, i, v)
    {
        listed |= type_named(json_string_value(v));
    }
    types &= listed ? listed : CT_ANY;
    if (constant)
        return types & ct_type_of(constant);
    listed = 0;
    json_array_foreach(json_object_get(schema, "enum"), i, v)
    {
        listed |= ct_type_of(v);
    }
    return types & (listed ? listed : CT_ANY);
}

static unsigned types_of(reader *r, const json_t *schema)
{
    if (!json_is_object(schema) || r->left-- <= 0)
        return CT_ANY;
    unsigned types = own_types(schema);
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    if (ref)
        types &= types_of(r, resolve(r->root, ref));
    types &= any_of(r, json_object_get(schema, "anyOf"));
    types &= any_of(r, json_object_get(schema, "oneOf"));
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(schema, "allOf"), i, one)
    {
        types &= types_of(r, one);
    }
    return types;
}

/* The first value of the key in a schema, in what it refers to, or in one of its alternatives. */
static const json_t *find_key(reader *r, const json_t *schema, const char *key)
{
    if (!json_is_object(schema) || r->left-- <= 0)
        return NULL;
    const json_t *found = json_object_get(schema, key);
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    if (!found && ref)
        found = find_key(r, resolve(r->root, ref), key);
    static const char *const lists[] = {"allOf", "anyOf", "oneOf"};
    for (size_t i = 0; !found && i < SL_COUNT(lists); i++) {
        const json_t *list = json_object_get(schema, lists[i]);
        for (size_t k = 0; !found && k < json_array_size(list) && r->left > 0; k++)
            found = find_key(r, json_array_get(list, k), key);
    }
    return found;
}

unsigned ct_types(const json_t *root, const json_t *schema)
{
    reader r = {.root = root, .left = MAX_NODES};
    return types_of(&r, schema);
}

const json_t *ct_member(const json_t *root, const json_t *schema, const char *key, size_t len)
{
    reader r = {.root = root, .left = MAX_NODES};
    const json_t *own = json_object_getn(find_key(&r, schema, "properties"), key, len);
    r.left = MAX_NODES;
    return own ? own : find_key(&r, schema, "additionalProperties");
}

const json_t *ct_items(const json_t *root, const json_t *schema)
{
    reader r = {.root = root, .left = MAX_NODES};
    return find_key(&r, schema, "items");
}

unsigned ct_property_types(const json_t *schema, const char *key, size_t len)
{
    return ct_types(schema, json_object_getn(json_object_get(schema, "properties"), key, len));
}
