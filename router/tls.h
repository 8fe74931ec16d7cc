/*
 * Certificates of the listeners for clients. One sl_tls is one reading of router.tls_cert, tls_key and tls_client_ca,
 * for both protocols: a context of OpenSSL (HTTP/2) and credentials of GnuTLS (libmicrohttpd), with the same rules: TLS
 * 1.2 and 1.3, authenticated ciphers with forward secrecy, and with tls_client_ca a client certificate that this
 * authority signed.
 *
 * The router holds the current one and replaces it on SIGHUP; every connection holds the one it began with until it
 * ends, so a reload does not touch it. A session is never resumed where client certificates are required: each
 * connection proves itself to the authority that is current when it begins.
 *
 * Threads: the loop's thread only. Lifetime: by references.
 */
#ifndef SL_ROUTER_TLS_H
#define SL_ROUTER_TLS_H

#include "base/status.h"

struct ssl_ctx_st;
struct gnutls_session_int;
typedef struct sl_tls sl_tls;

/* Reads the PEM files; the caller owns one reference. client_ca: NULL or "" = clients need no certificate. Errors name
 * the key and the file: IO (cannot be read), INVALID (no certificate, no key, not a pair). Dates are not compared. */
sl_status sl_tls_load(const char *cert, const char *key, const char *client_ca, sl_tls **out, sl_err *err);
sl_tls *sl_tls_ref(sl_tls *t);
void sl_tls_unref(sl_tls *t); /* NULL is allowed */

/* For SSL_new(); borrowed. Without ALPN: the caller sets its callback. */
struct ssl_ctx_st *sl_tls_openssl(sl_tls *t);
/* Makes a session of GnuTLS that has not begun its handshake use t, which must outlive it. */
sl_status sl_tls_use(sl_tls *t, struct gnutls_session_int *session);
/* Compares the validity of every certificate of the file router.tls_cert with the clock. INVALID: one of them is not valid
 * yet or has expired; the error names the key, the file (cert, as it was given to sl_tls_load), which certificate of the
 * file it is, and the date. */
sl_status sl_tls_check_dates(const sl_tls *t, const char *cert, sl_err *err);
/* The end of the server certificate's validity, "2026-11-22T06:50:55Z". */
const char *sl_tls_expires(const sl_tls *t);

/* Priority string of GnuTLS for all sessions. */
extern const char sl_tls_priorities[];

#endif
