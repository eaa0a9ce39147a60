"""An engine as a server within the process: requests of one image each, from any thread, answered by futures.

Requests wait in a queue of bounded length; a thread takes as many as fill the largest bucket, or those that there are,
and runs them through the engine. What cannot be served is refused at once, and fails alone.
"""

import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxprune.dynamic.engine import Engine, Served, require_images
from jaxprune.dynamic.stream import Stream
from jaxprune.errors import UserError, shortened

_KEPT = 4096  # latencies, of the last answers
PERCENTILES = (50, 90, 99)


class Refused(UserError):
    """The server takes no request: its queue is full, or it is closed."""


class Expired(UserError):
    """The deadline of a request passed before it was answered."""


class Prediction(NamedTuple):
    """The answer to a request.

    Attributes:
      logits: of the exit where the image left.
      exit: that exit, from 0.
      seconds: from the request to the answer.
    """

    logits: Float[np.ndarray, "c"]
    exit: int
    seconds: float


class Metrics(NamedTuple):
    """What a server has done since it was made.

    Attributes:
      served, refused, expired, cancelled, failed: numbers of requests.
      waiting: number of requests in the queue now.
      latency: {percentile: seconds} of the last answers, {} before the first.
      images_per_second: over the same answers; 0 before the second.
      shares: of the answers, by exit.
    """

    served: int
    refused: int
    expired: int
    cancelled: int
    failed: int
    waiting: int
    latency: dict[int, float]
    images_per_second: float
    shares: tuple[float, ...]


class _Request(NamedTuple):
    image: np.ndarray
    future: Future
    start: float
    end: float


class Server:
    """Serves single images from any thread with one engine, and one thread that runs it.

    >>> import jaxprune; from flax import nnx; from jaxprune.dynamic.cascade import Cascade
    >>> sizes = dict(img_size=8, patch_size=4, embed_dim=16, depth=1, num_heads=2, num_classes=3)
    >>> model = Cascade([jaxprune.models.create("vit", **sizes, rngs=nnx.Rngs(0))])
    >>> with Server(Engine(model, (0.0,), batch_size=2)) as server:
    ...     server.submit(np.zeros((8, 8, 3), np.uint8)).result().exit
    0

    Args:
      engine: nobody else may run it as long as the server is open; its thresholds may be set at any time. All its
        programs are compiled here.
      capacity: number of requests that may wait; one more is refused.
      deadline: seconds within which a request is answered, or fails with `Expired`; None = any time.
      linger: seconds that the first request of a batch waits for others to fill it; 0 = only while the engine is busy.

    Raises:
      UserError: an argument does not fit.
    """

    def __init__(self, engine: Engine, *, capacity: int = 256, deadline: float | None = None, linger: float = 0.0):
        if capacity < 1 or linger < 0 or (deadline is not None and deadline <= 0):
            raise UserError(
                f"capacity={capacity}, deadline={deadline} and linger={linger} do not fit: use a capacity of 1 or "
                "more, a deadline above 0 and a linger of 0 or more."
            )
        self.engine, self._capacity, self._deadline, self._linger = engine, capacity, deadline, linger
        self._shape = engine.image_shape
        engine.warm_up()
        self._queue: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._is_open, self._ids = True, itertools.count()
        self._inside: dict[int, _Request] = {}
        self._counts: Counter[str] = Counter()
        self._exits: Counter[int] = Counter()
        self._answers: deque[tuple[float, float]] = deque(maxlen=_KEPT)  # when, and after how many seconds
        self._thread = threading.Thread(target=self._serve, name="jaxprune-server", daemon=True)
        self._thread.start()

    def submit(self, image: np.ndarray, *, deadline: float | None = None, wait: float = 0.0) -> "Future[Prediction]":
        """Returns the future of an image's `Prediction`; it may be cancelled as long as the image waits.

        Args:
          image: pixels from 0 to 255, uint8 (h, w, 3) of the network's size.
          deadline: seconds, instead of the server's.
          wait: seconds to wait for a place in a full queue.

        Raises:
          UserError: the image does not fit; `Refused` if the queue stays full, or the server is closed.
        """
        try:
            array = np.array(image)  # a copy: the client may write into its own again
        except Exception as error:
            raise UserError(f"An image is not an array ({shortened(error)}): give uint8 {self._shape}.") from error
        if array.dtype != np.uint8 or array.shape != self._shape:
            raise UserError(f"An image is {array.dtype} {array.shape}: give pixels from 0 to 255, uint8 {self._shape}.")
        start, future = time.monotonic(), Future()
        seconds = self._deadline if deadline is None else deadline
        request = _Request(array, future, start, start + (float("inf") if seconds is None else seconds))
        with self._changed:
            has_place = lambda: len(self._queue) < self._capacity or not self._is_open
            if not has_place() and not (wait > 0 and self._changed.wait_for(has_place, wait)):
                self._counts["refused"] += 1
                raise Refused(f"{self._capacity} requests wait already: ask again later, or with fewer at a time.")
            if not self._is_open:
                self._counts["refused"] += 1
                raise Refused("The server is closed: make another one.")
            self._queue.append(request)
            self._changed.notify_all()
        return future

    def __call__(self, images: Iterable[np.ndarray], *, wait: float = 600.0) -> Served:
        """Predicts images in order; each waits for its place in the queue for at most `wait` seconds.

        Raises:
          UserError: there are none.
        """
        futures = [self.submit(image, wait=wait) for image in images]
        require_images(len(futures))
        answers = [future.result() for future in futures]
        exits = np.array([answer.exit for answer in answers], np.int32)
        return Served(np.stack([answer.logits for answer in answers]), exits)

    def metrics(self) -> Metrics:
        """Returns what the server has done."""
        with self._changed:
            counts, exits, answers = self._counts.copy(), self._exits.copy(), [*self._answers]
            waiting = len(self._queue)
        total = exits.total()
        latencies = [seconds for _, seconds in answers]
        span = answers[-1][0] - answers[0][0] if answers else 0.0
        return Metrics(
            *(counts[name] for name in ("served", "refused", "expired", "cancelled", "failed")),
            waiting,
            {p: float(np.percentile(latencies, p)) for p in PERCENTILES} if latencies else {},
            (len(answers) - 1) / span if span else 0.0,
            tuple(exits[exit] / max(total, 1) for exit in range(self.engine.exits)),
        )

    def close(self, *, drain: bool = True) -> None:
        """Ends the server: takes no more requests, and returns when the last one is answered.

        Args:
          drain: whether those that wait are served; otherwise they are refused.
        """
        dropped: deque[_Request] = deque()
        with self._changed:
            self._is_open = False
            if not drain:
                dropped, self._queue = self._queue, dropped
                self._counts["refused"] += len(dropped)
            self._changed.notify_all()
        for request in dropped:
            if request.future.set_running_or_notify_cancel():
                request.future.set_exception(Refused("The server was closed: make another one."))
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(drain=kind is None)

    def _serve(self) -> None:
        stream = Stream(self.engine)
        while (batch := self._batch(stream)) is not None:
            requests, late, flush = batch
            for request in late:
                self._expire(request)
            try:
                ids = np.array([next(self._ids) for _ in requests], int)
                self._inside.update(zip(ids.tolist(), requests, strict=True))
                pixels = np.stack([request.image for request in requests]) if requests else np.zeros((0, 1), np.uint8)
                for number, logits, exit in stream.advance(ids, pixels, flush=flush):
                    self._answer(self._inside.pop(number), logits, exit)
            except Exception as error:  # whatever happens in a program ends its images, and no others
                stream = Stream(self.engine)
                self._fail(error)
        assert not [*stream.finish()]

    def _batch(self, stream: Stream) -> tuple[list[_Request], list[_Request], bool] | None:
        """The next requests, those that are late, and whether all images have to leave; None at the end."""
        largest = self.engine.buckets[-1]
        with self._changed:
            while True:
                if not self._queue and not stream and self._is_open:
                    self._changed.wait_for(lambda: self._queue or not self._is_open)
                if self._linger and self._is_open and len(self._queue) < largest:
                    since = self._queue[0].start if self._queue else time.monotonic()
                    is_full = lambda: len(self._queue) >= largest or not self._is_open
                    self._changed.wait_for(is_full, max(0.0, since + self._linger - time.monotonic()))
                requests, late, now = [], [], time.monotonic()
                while self._queue and len(requests) < largest:
                    request = self._queue.popleft()
                    if not request.future.set_running_or_notify_cancel():
                        self._counts["cancelled"] += 1
                    else:
                        (late if request.end < now else requests).append(request)
                self._changed.notify_all()
                if requests or late or stream:
                    return requests, late, self.engine.remainder != "hold" or not self._queue
                if not self._is_open and not self._queue:
                    return None

    def _answer(self, request: _Request, logits: np.ndarray, exit: int) -> None:
        now = time.monotonic()
        if not np.isfinite(logits).all():
            with self._changed:
                self._counts["failed"] += 1
            request.future.set_exception(UserError("The network's logits for this image are not finite: check it."))
        elif request.end < now:
            self._expire(request)
        else:
            with self._changed:
                self._counts["served"] += 1
                self._exits[exit] += 1
                self._answers.append((now, now - request.start))
            request.future.set_result(Prediction(logits, exit, now - request.start))

    def _expire(self, request: _Request) -> None:
        with self._changed:
            self._counts["expired"] += 1
        seconds = request.end - request.start
        request.future.set_exception(Expired(f"The deadline of {seconds:.3g} s has passed: ask again, or allow more."))

    def _fail(self, error: Exception) -> None:
        requests, self._inside = self._inside, {}
        with self._changed:
            self._counts["failed"] += len(requests)
        for request in requests.values():
            failure = UserError(f"The engine failed with this image in a batch: {shortened(error)}.")
            failure.__cause__ = error
            request.future.set_exception(failure)
