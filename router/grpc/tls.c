/*
 * TLS context for the gRPC listener: TLS 1.2 or newer, ALPN must offer h2.
 */
#include <openssl/err.h>
#include <string.h>

#include "router/grpc/h2.h"

static int choose_alpn(SSL *ssl, const unsigned char **out, unsigned char *outlen, const unsigned char *in,
                       unsigned inlen, void *arg)
{
    (void)ssl;
    (void)arg;
    for (unsigned i = 0; i < inlen; i += 1u + in[i]) {
        if (in[i] == 2 && i + 3 <= inlen && !memcmp(in + i + 1, "h2", 2)) {
            *out = in + i + 1;
            *outlen = 2;
            return SSL_TLSEXT_ERR_OK;
        }
    }
    return SSL_TLSEXT_ERR_ALERT_FATAL;
}

static sl_status fail_ssl(sl_err *err, const char *key, const char *path)
{
    char text[256];
    ERR_error_string_n(ERR_get_error(), text, sizeof text);
    return sl_fail(err, SL_ERR_INVALID, "router.%s: %s: %s", key, path, text);
}

sl_status h2_tls_create(const char *cert, const char *key, SSL_CTX **out, sl_err *err)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx)
        return sl_fail(err, SL_ERR_NO_MEMORY, "cannot make a TLS context");
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_cipher_list(ctx, "ECDHE+AESGCM:ECDHE+CHACHA20"); /* of TLS 1.2; those of 1.3 are all modern */
    SSL_CTX_set_alpn_select_cb(ctx, choose_alpn, NULL);
    sl_status st = SL_OK;
    if (SSL_CTX_use_certificate_chain_file(ctx, cert) != 1)
        st = fail_ssl(err, "tls_cert", cert);
    else if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1)
        st = fail_ssl(err, "tls_key", key);
    if (st)
        SSL_CTX_free(ctx);
    else
        *out = ctx;
    return st;
}
