/* See tls.h. */
#include "router/tls.h"

#include <errno.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char sl_tls_priorities[] =
    "SECURE128:%SERVER_PRECEDENCE:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-CIPHER-ALL:"
    "+AES-128-GCM:+AES-256-GCM:+CHACHA20-POLY1305:-RSA";
/* The same for TLS 1.2 in OpenSSL; its suites of TLS 1.3 all qualify. */
static const char OPENSSL_CIPHERS[] = "ECDHE+AESGCM:ECDHE+CHACHA20";

struct sl_tls {
    unsigned refs;
    SSL_CTX *openssl;
    gnutls_certificate_credentials_t gnutls;
    bool client_ca;
    char expires[32];
};

static sl_status fail_openssl(sl_err *err, const char *key, const char *path)
{
    char text[256];
    unsigned long e = ERR_get_error();
    ERR_error_string_n(e, text, sizeof text);
    ERR_clear_error();
    return sl_fail(err, SL_ERR_INVALID, "router.%s: %s: %s", key, path, e ? text : "no certificate in it");
}

static sl_status readable(const char *key, const char *path, sl_err *err)
{
    FILE *f = fopen(path, "rbe");
    if (!f)
        return sl_fail(err, SL_ERR_IO, "router.%s: cannot read %s: %s", key, path, strerror(errno));
    fclose(f);
    return SL_OK;
}

static void write_time(const ASN1_TIME *t, char *out, size_t cap)
{
    struct tm tm;
    if (ASN1_TIME_to_tm(t, &tm) != 1 || !strftime(out, cap, "%Y-%m-%dT%H:%M:%SZ", &tm))
        snprintf(out, cap, "an unreadable date");
}

/* number: from 1, the server's own certificate; 2 and more: those that the file gives to lead to the authority. */
static sl_status check_dates(const X509 *x, int number, const char *path, sl_err *err)
{
    char at[32];
    const ASN1_TIME *begin = X509_get0_notBefore(x), *end = X509_get0_notAfter(x);
    /* 0: the date cannot be read. Below 0: it has passed, or is now. */
    if (X509_cmp_current_time(begin) >= 0) {
        write_time(begin, at, sizeof at);
        return sl_fail(err, SL_ERR_INVALID, "router.tls_cert: %s: certificate %d is not valid before %s",
                       path, number, at);
    }
    if (X509_cmp_current_time(end) <= 0) {
        write_time(end, at, sizeof at);
        return sl_fail(err, SL_ERR_INVALID, "router.tls_cert: %s: certificate %d expired at %s", path, number,
                       at);
    }
    return SL_OK;
}

static sl_status load_openssl(sl_tls *t, const char *cert, const char *key, const char *ca, sl_err *err)
{
    t->openssl = SSL_CTX_new(TLS_server_method());
    if (!t->openssl)
        return sl_fail(err, SL_ERR_NO_MEMORY, "cannot make a TLS context");
    SSL_CTX_set_min_proto_version(t->openssl, TLS1_2_VERSION);
    SSL_CTX_set_cipher_list(t->openssl, OPENSSL_CIPHERS);
    if (SSL_CTX_use_certificate_chain_file(t->openssl, cert) != 1)
        return fail_openssl(err, "tls_cert", cert);
    if (SSL_CTX_use_PrivateKey_file(t->openssl, key, SSL_FILETYPE_PEM) != 1) /* must fit the certificate */
        return fail_openssl(err, "tls_key", key);
    write_time(X509_get0_notAfter(SSL_CTX_get0_certificate(t->openssl)), t->expires, sizeof t->expires);
    if (!t->client_ca)
        return SL_OK;
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(ca);
    if (!names || SSL_CTX_load_verify_locations(t->openssl, ca, NULL) != 1) {
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        return fail_openssl(err, "tls_client_ca", ca);
    }
    SSL_CTX_set_client_CA_list(t->openssl, names);
    SSL_CTX_set_verify(t->openssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_session_cache_mode(t->openssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(t->openssl, SSL_OP_NO_TICKET);
    SSL_CTX_set_num_tickets(t->openssl, 0);
    return SL_OK;
}

/* GnuTLS resumes no session unless its server asks for that, which nothing here does. */
static sl_status load_gnutls(sl_tls *t, const char *cert, const char *key, const char *ca, sl_err *err)
{
    if (gnutls_certificate_allocate_credentials(&t->gnutls))
        return sl_fail(err, SL_ERR_NO_MEMORY, "cannot make TLS credentials");
    int e = gnutls_certificate_set_x509_key_file2(t->gnutls, cert, key, GNUTLS_X509_FMT_PEM, NULL, 0);
    if (e < 0)
        return sl_fail(err, SL_ERR_INVALID, "router.tls_cert and router.tls_key: %s, %s: %s", cert, key,
                       gnutls_strerror(e));
    e = t->client_ca ? gnutls_certificate_set_x509_trust_file(t->gnutls, ca, GNUTLS_X509_FMT_PEM) : 1;
    if (e <= 0)
        return sl_fail(err, SL_ERR_INVALID, "router.tls_client_ca: %s: %s", ca,
                       e ? gnutls_strerror(e) : "no certificate in it");
    return SL_OK;
}

static sl_status load(sl_tls *t, const char *cert, const char *key, const char *ca, sl_err *err)
{
    SL_TRY(readable("tls_cert", cert, err));
    SL_TRY(readable("tls_key", key, err));
    if (t->client_ca)
        SL_TRY(readable("tls_client_ca", ca, err));
    SL_TRY(load_openssl(t, cert, key, ca, err));
    return load_gnutls(t, cert, key, ca, err);
}

sl_status sl_tls_load(const char *cert, const char *key, const char *client_ca, sl_tls **out, sl_err *err)
{
    sl_tls *t = calloc(1, sizeof *t);
    if (!t)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    t->refs = 1;
    t->client_ca = client_ca && *client_ca;
    sl_status st = load(t, cert, key ? key : "", client_ca, err);
    if (st)
        sl_tls_unref(t);
    else
        *out = t;
    return st;
}

sl_tls *sl_tls_ref(sl_tls *t)
{
    t->refs++;
    return t;
}

void sl_tls_unref(sl_tls *t)
{
    if (!t || --t->refs)
        return;
    SSL_CTX_free(t->openssl);
    if (t->gnutls)
        gnutls_certificate_free_credentials(t->gnutls);
    free(t);
}

SSL_CTX *sl_tls_openssl(sl_tls *t)
{
    return t->openssl;
}

/* GnuTLS keeps the pointer as long as the session. */
static gnutls_typed_vdata_st for_clients = {.type = GNUTLS_DT_KEY_PURPOSE_OID,
                                            .data = (unsigned char *)(uintptr_t)GNUTLS_KP_TLS_WWW_CLIENT};

sl_status sl_tls_use(sl_tls *t, gnutls_session_t session)
{
    if (gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, t->gnutls))
        return SL_ERR_NO_MEMORY;
    if (t->client_ca) {
        gnutls_certificate_server_set_request(session, GNUTLS_CERT_REQUIRE);
        /* In the handshake, which fails without a valid one. As in OpenSSL, a certificate that was made for servers
         * only does not count. */
        gnutls_session_set_verify_cert2(session, &for_clients, 1, 0);
    }
    return SL_OK;
}

sl_status sl_tls_check_dates(const sl_tls *t, const char *cert, sl_err *err)
{
    STACK_OF(X509) *chain = NULL;
    SSL_CTX_get0_chain_certs(t->openssl, &chain);
    SL_TRY(check_dates(SSL_CTX_get0_certificate(t->openssl), 1, cert, err));
    for (int i = 0; i < sk_X509_num(chain); i++)
        SL_TRY(check_dates(sk_X509_value(chain, i), i + 2, cert, err));
    return SL_OK;
}

const char *sl_tls_expires(const sl_tls *t)
{
    return t->expires;
}
