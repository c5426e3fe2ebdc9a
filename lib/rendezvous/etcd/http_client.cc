#include "rendezvous/etcd/http_client.h"

#include <curl/curl.h>
#include <dlfcn.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "util/error.h"
#include "util/interrupt.h"
#include "wire/crypto.h"

namespace libddp {
namespace {

constexpr const char* kFile = "libcurl.so.4";
constexpr std::int64_t kConnectMs = 2000;
constexpr int kLongestPollMs = 1000;
constexpr std::size_t kLongestAnswer = std::size_t{512} << 20;

#define LIBDDP_CURL_FUNCTIONS(use)                                                               \
    use(curl_global_init) use(curl_easy_init) use(curl_easy_cleanup) use(curl_easy_reset)        \
        use(curl_easy_setopt) use(curl_easy_getinfo) use(curl_easy_strerror)                     \
            use(curl_slist_append) use(curl_slist_free_all) use(curl_multi_init)                 \
                use(curl_multi_cleanup) use(curl_multi_add_handle) use(curl_multi_remove_handle) \
                    use(curl_multi_perform) use(curl_multi_poll) use(curl_multi_wakeup)          \
                        use(curl_multi_info_read)

struct Curl {
#define LIBDDP_CURL_POINTER(name) decltype(&::name) name = nullptr;
    LIBDDP_CURL_FUNCTIONS(LIBDDP_CURL_POINTER)
#undef LIBDDP_CURL_POINTER
};

Curl open() {
    void* library = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail(DDP_ERROR_UNSUPPORTED, "a store on etcd needs ", kFile, ", which does not load (",
             dlerror(), "); install libcurl4");
    Curl curl;
    const auto find = [&](const char* name) {
        void* function = dlsym(library, name);
        if (!function)
            fail(DDP_ERROR_UNSUPPORTED, "a store on etcd needs libcurl 7.68 or newer; ", kFile,
                 " has no ", name);
        return function;
    };
#define LIBDDP_CURL_FIND(name) curl.name = reinterpret_cast<decltype(&::name)>(find(#name));
    LIBDDP_CURL_FUNCTIONS(LIBDDP_CURL_FIND)
#undef LIBDDP_CURL_FIND
    const wire::Cryptography cryptography;
    cryptography.require();
    curl.curl_global_init(CURL_GLOBAL_DEFAULT);
    return curl;
}

const Curl& curl() {
    static const Curl opened = open();
    return opened;
}

bool about_certificates(CURLcode code) {
    return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
           code == CURLE_SSL_CERTPROBLEM || code == CURLE_SSL_ISSUER_ERROR;
}

}  // namespace

struct HttpClient::Handles {
    CURLM* multi = nullptr;
    CURL* easy = nullptr;
    // curl's sentence about a failure.
    char reason[CURL_ERROR_SIZE] = "";
};

struct HttpClient::Call {
    std::string_view body;
    Answer answer;
    const std::function<void(std::string_view)>* more = nullptr;
    CURL* easy = nullptr;
    std::exception_ptr failure;

    static std::size_t write(char* data, std::size_t, std::size_t size, void* self) {
        return static_cast<Call*>(self)->take({data, size});
    }
    std::size_t take(std::string_view bytes) {
        try {
            long status = 0;
            curl().curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
            if (more && status == 200) {
                (*more)(bytes);
            } else {
                if (answer.body.size() + bytes.size() > kLongestAnswer)
                    fail(DDP_ERROR_LIMIT, "an answer of more than ", kLongestAnswer, " bytes");
                answer.body.append(bytes);
            }
            return bytes.size();
        } catch (...) {
            failure = std::current_exception();
            return 0;
        }
    }
};

HttpClient::HttpClient(Tls tls) : tls_(std::move(tls)), handles_(std::make_unique<Handles>()) {
    curl();
    const wire::Cryptography cryptography;
    cryptography.require();
    handles_->multi = curl().curl_multi_init();
    handles_->easy = curl().curl_easy_init();
    if (handles_->multi && handles_->easy) return;
    if (handles_->multi) curl().curl_multi_cleanup(handles_->multi);
    if (handles_->easy) curl().curl_easy_cleanup(handles_->easy);
    throw std::bad_alloc();
}

HttpClient::~HttpClient() {
    const wire::Cryptography cryptography;
    if (!cryptography) {
        wire::leave_behind(handles_->easy);
        wire::leave_behind(handles_->multi);
        return;
    }
    curl().curl_easy_cleanup(handles_->easy);
    curl().curl_multi_cleanup(handles_->multi);
}

void HttpClient::end() {
    ended_ = true;
    curl().curl_multi_wakeup(handles_->multi);
}

void HttpClient::cut() {
    cut_ = true;
    curl().curl_multi_wakeup(handles_->multi);
}

void HttpClient::check() const {
    if (ended_) fail(DDP_ERROR_ABORTED, "the store handle was closed");
    if (interrupt::wanted()) fail(DDP_ERROR_INTERRUPTED, "interrupted");
}

void HttpClient::pause(std::int64_t ms, const Deadline& deadline) {
    const auto end = Deadline::after_ms(std::min(ms, deadline.remaining_ms()));
    do {
        check();
        const std::int64_t longest =
            interrupt::possible() ? interrupt::kSlice.count() : kLongestPollMs;
        curl().curl_multi_poll(handles_->multi, nullptr, 0,
                               static_cast<int>(std::min(end.remaining_ms(), longest)), nullptr);
    } while (!end.expired());
    check();
}

HttpClient::Answer HttpClient::post(const std::string& url, const std::string& authorization,
                                    std::string_view body, const Deadline& deadline) {
    Call call;
    call.body = body;
    perform(call, url, authorization, deadline);
    return std::move(call.answer);
}

HttpClient::Answer HttpClient::stream(const std::string& url, const std::string& authorization,
                                      std::string_view body,
                                      const std::function<void(std::string_view)>& more) {
    Call call;
    call.body = body;
    call.more = &more;
    cut_ = false;
    perform(call, url, authorization, Deadline::after_ms(std::int64_t{365} * 24 * 3600 * 1000));
    return std::move(call.answer);
}

void HttpClient::perform(Call& call, const std::string& url, const std::string& authorization,
                         const Deadline& deadline) {
    check();
    CURL* easy = call.easy = handles_->easy;
    const auto set = [&](CURLoption option, auto value) {
        curl().curl_easy_setopt(easy, option, value);
    };
    struct List {
        curl_slist* head = nullptr;
        ~List() { curl().curl_slist_free_all(head); }
        void add(const std::string& line) { head = curl().curl_slist_append(head, line.c_str()); }
    } headers;
    headers.add("Content-Type: application/json");
    headers.add("Expect:");
    if (!authorization.empty()) headers.add("Authorization: " + authorization);

    handles_->reason[0] = '\0';
    curl().curl_easy_reset(easy);
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_PROXY, "");
    set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_TCP_KEEPALIVE, 1L);
    set(CURLOPT_TCP_KEEPIDLE, 5L);
    set(CURLOPT_TCP_KEEPINTVL, 2L);
    set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(kConnectMs));
    set(CURLOPT_ERRORBUFFER, handles_->reason);
    set(CURLOPT_HTTPHEADER, headers.head);
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call.body.size()));
    set(CURLOPT_POSTFIELDS, call.body.data());
    set(CURLOPT_WRITEFUNCTION, &Call::write);
    set(CURLOPT_WRITEDATA, &call);
    if (!tls_.cacert.empty()) set(CURLOPT_CAINFO, tls_.cacert.c_str());
    if (!tls_.cert.empty()) set(CURLOPT_SSLCERT, tls_.cert.c_str());
    if (!tls_.key.empty()) set(CURLOPT_SSLKEY, tls_.key.c_str());

    struct Added {
        CURLM* multi;
        CURL* easy;
        ~Added() {
            // curl may end the connection's TLS here.
            const wire::Cryptography cryptography;
            if (cryptography) curl().curl_multi_remove_handle(multi, easy);
        }
    } added{handles_->multi, easy};
    curl().curl_multi_add_handle(handles_->multi, easy);
    while (true) {
        int running = 0;
        {
            const wire::Cryptography cryptography;
            cryptography.require();
            curl().curl_multi_perform(handles_->multi, &running);
        }
        if (call.failure) std::rethrow_exception(call.failure);
        if (running == 0) break;
        check();
        if (call.more && cut_) fail(DDP_ERROR_UNAVAILABLE, "the watch had stood still");
        if (deadline.expired()) fail(DDP_ERROR_TIMEOUT, url, " did not answer");
        const std::int64_t longest =
            interrupt::possible() ? interrupt::kSlice.count() : kLongestPollMs;
        curl().curl_multi_poll(handles_->multi, nullptr, 0,
                               static_cast<int>(std::min(deadline.remaining_ms(), longest)),
                               nullptr);
    }
    int left = 0;
    const CURLMsg* message = curl().curl_multi_info_read(handles_->multi, &left);
    const CURLcode code = message ? message->data.result : CURLE_FAILED_INIT;
    if (code != CURLE_OK)
        fail(about_certificates(code)           ? DDP_ERROR_PERMISSION_DENIED
             : code == CURLE_OPERATION_TIMEDOUT ? DDP_ERROR_TIMEOUT
                                                : DDP_ERROR_UNAVAILABLE,
             url, ": ", handles_->reason[0] ? handles_->reason : curl().curl_easy_strerror(code));
    curl().curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &call.answer.status);
}

}  // namespace libddp
