from scrapy.utils.request import fingerprint


class ByHeader:
    def fingerprint(self, request):
        return fingerprint(request, include_headers=["X-ID"])
