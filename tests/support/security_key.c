/* A FIDO middleware library for OpenSSH without a token: every call is handed to `security_key.py` over a socket.

   Built with -DTOKEN='"/path/of/the/socket"'. A call sends seven fields (what, algorithm, flags, application, key
   handle, data, PIN) and gets back a status and, if that is 0, three fields; each field has its length before it.
   The functions and structures are those that OpenSSH looks up in such a library (version 0x000a0000). */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define VERSION 0x000a0000
#define FAILED (-1)

struct sk_option;

struct sk_enroll_response {
    uint8_t flags;
    uint8_t *public_key;
    size_t public_key_len;
    uint8_t *key_handle;
    size_t key_handle_len;
    uint8_t *signature;
    size_t signature_len;
    uint8_t *attestation_cert;
    size_t attestation_cert_len;
    uint8_t *authdata;
    size_t authdata_len;
};

struct sk_sign_response {
    uint8_t flags;
    uint32_t counter;
    uint8_t *sig_r;
    size_t sig_r_len;
    uint8_t *sig_s;
    size_t sig_s_len;
};

struct field {
    uint8_t *bytes;
    uint32_t length;
};

static int put(int to, const void *bytes, uint32_t length) {
    if (send(to, &length, sizeof length, MSG_NOSIGNAL) != sizeof length)
        return 0;
    return length == 0 || send(to, bytes, length, MSG_NOSIGNAL) == (ssize_t)length;
}

static int take(int from, void *bytes, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t got = read(from, (uint8_t *)bytes + done, length - done);
        if (got <= 0)
            return 0;
        done += (size_t)got;
    }
    return 1;
}

/* 0, or a negative error of the token; then `answer` holds nothing. */
static int ask(char what, uint32_t alg, uint8_t flags, const char *application, const uint8_t *handle, size_t handle_len,
               const uint8_t *data, size_t data_len, const char *pin, struct field answer[3]) {
    struct sockaddr_un token = {.sun_family = AF_UNIX, .sun_path = TOKEN};
    int32_t status = FAILED;
    int line = socket(AF_UNIX, SOCK_STREAM, 0);
    uint8_t kind = (uint8_t)alg;

    memset(answer, 0, 3 * sizeof *answer);
    if (line < 0 || connect(line, (struct sockaddr *)&token, sizeof token) != 0)
        goto out;
    if (!put(line, &what, 1) || !put(line, &kind, 1) || !put(line, &flags, 1) ||
        !put(line, application, (uint32_t)strlen(application)) || !put(line, handle, (uint32_t)handle_len) ||
        !put(line, data, (uint32_t)data_len) || !put(line, pin ? pin : "", pin ? (uint32_t)strlen(pin) : 0))
        goto out;
    if (!take(line, &status, sizeof status)) {
        status = FAILED;
        goto out;
    }
    for (int i = 0; status == 0 && i < 3; i++) {
        if (!take(line, &answer[i].length, sizeof answer[i].length) ||
            (answer[i].bytes = calloc(1, answer[i].length + 1)) == NULL ||
            !take(line, answer[i].bytes, answer[i].length))
            status = FAILED;
    }
out:
    if (line >= 0)
        close(line);
    return status;
}

uint32_t sk_api_version(void) {
    return VERSION;
}

int sk_enroll(uint32_t alg, const uint8_t *challenge, size_t challenge_len, const char *application, uint8_t flags,
              const char *pin, struct sk_option **options, struct sk_enroll_response **enrolled) {
    struct field answer[3];
    int status = ask('E', alg, flags, application, NULL, 0, challenge, challenge_len, pin, answer);

    (void)options;
    if (status != 0 || (*enrolled = calloc(1, sizeof **enrolled)) == NULL)
        return status != 0 ? status : FAILED;
    (*enrolled)->flags = flags;
    (*enrolled)->public_key = answer[0].bytes;
    (*enrolled)->public_key_len = answer[0].length;
    (*enrolled)->key_handle = answer[1].bytes;
    (*enrolled)->key_handle_len = answer[1].length;
    (*enrolled)->signature = answer[2].bytes; /* of the attestation, which nobody looks at */
    (*enrolled)->signature_len = answer[2].length;
    return 0;
}

int sk_sign(uint32_t alg, const uint8_t *data, size_t data_len, const char *application, const uint8_t *handle,
            size_t handle_len, uint8_t flags, const char *pin, struct sk_option **options,
            struct sk_sign_response **sign) {
    struct field answer[3];
    int status = ask('S', alg, flags, application, handle, handle_len, data, data_len, pin, answer);

    (void)options;
    if (status != 0 || answer[0].length != sizeof(*sign)->counter || (*sign = calloc(1, sizeof **sign)) == NULL)
        return status != 0 ? status : FAILED;
    (*sign)->flags = flags;
    memcpy(&(*sign)->counter, answer[0].bytes, answer[0].length);
    free(answer[0].bytes);
    (*sign)->sig_r = answer[1].bytes;
    (*sign)->sig_r_len = answer[1].length;
    (*sign)->sig_s = answer[2].length ? answer[2].bytes : NULL;
    (*sign)->sig_s_len = answer[2].length;
    return 0;
}

int sk_load_resident_keys(const char *pin, struct sk_option **options, void ***keys, size_t *count) {
    (void)pin, (void)options, (void)keys, (void)count;
    return FAILED;
}
