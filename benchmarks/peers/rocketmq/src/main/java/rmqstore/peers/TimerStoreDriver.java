package rmqstore.peers;

import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.apache.rocketmq.store.timer.TimerCheckpoint;
import org.apache.rocketmq.store.timer.TimerMessageStore;
import org.apache.rocketmq.store.timer.TimerMetrics;

/**
 * Times RocketMQ's file wheel without a broker: a DefaultMessageStore with its TimerMessageStore, as BrokerController joins them.
 *
 * <p>Arguments: directory, SYNC_FLUSH or ASYNC_FLUSH, batch size, "schedule" or "drain", the file of timers (int count, then for each
 * long delay in ms, int length, body; big-endian), and how many of these come first to warm up the JVM: they become due at once and are
 * handed over before anything is timed. Prints one JSON object with seconds on stdout.
 *
 * <ul>
 *   <li>schedule: each timer is put with its own delay; the batch waits until every put is acknowledged, so flushed under SYNC_FLUSH.
 *       "placed" is the time until the wheel has them all, which its threads do behind the puts.
 *   <li>drain: all timers become due at one time, while the dequeue threads are held. They are let go when it is past; it takes until
 *       every message can be read from its topic. Then each body is read back and must have come exactly once.
 * </ul>
 */
public final class TimerStoreDriver {
    private static final String TOPIC = "orders";
    private static final int PRECISION_MS = 1000;
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);
    private static final int READ_AT_ONCE = 32;
    private static final long SPARE_MS = 3000;
    private static final long NOW = -1;

    private record Timer(long delayMs, byte[] body) {}

    private final DefaultMessageStore store;
    private final TimerMessageStore timers;
    private int warm;

    private TimerStoreDriver(Path directory, FlushDiskType flush) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(directory.toString());
        config.setStorePathCommitLog(directory.resolve("commitlog").toString());
        config.setFlushDiskType(flush);
        config.setTimerPrecisionMs(PRECISION_MS);
        config.setTimerWheelEnable(true);
        config.setHaListenPort(0);
        BrokerConfig broker = new BrokerConfig();
        ConcurrentHashMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        for (String name : List.of(TOPIC, TimerMessageStore.TIMER_TOPIC)) {
            topics.put(name, new TopicConfig(name, 1, 1));
        }
        BrokerStatsManager stats = new BrokerStatsManager("driver", false);
        store = new DefaultMessageStore(config, stats, (topic, queue, offset, tag, stored, filter, properties) -> {}, broker, topics);
        TimerCheckpoint checkpoint = new TimerCheckpoint(directory.resolve("config").resolve("timercheck").toString());
        TimerMetrics metrics = new TimerMetrics(directory.resolve("config").resolve("timermetrics").toString());
        timers = new TimerMessageStore(store, config, checkpoint, metrics, stats);
        store.setTimerMessageStore(timers);
        require(store.load(), "the store did not load");
        require(timers.load(), "the timer store did not load");
        store.start();
        timers.start();
    }

    public static void main(String[] given) throws Exception {
        Path directory = Path.of(given[0]);
        TimerStoreDriver driver = new TimerStoreDriver(directory, FlushDiskType.valueOf(given[1]));
        int batch = Integer.parseInt(given[2]);
        List<Timer> all = read(Path.of(given[4]));
        driver.warmUp(all.subList(0, Integer.parseInt(given[5])), batch);
        List<Timer> timers = all.subList(driver.warm, all.size());
        String figures = given[3].equals("drain") ? driver.drain(timers, batch) : driver.schedule(timers, batch);
        System.out.println(figures);
        System.out.flush();
        // Shutdown waits for threads that poll; the figures are out and the directory goes away.
        Runtime.getRuntime().halt(0);
    }

    private void warmUp(List<Timer> work, int batch) throws Exception {
        warm = work.size();
        timers.setShouldRunningDequeue(true);
        put(work, batch, System.currentTimeMillis() + PRECISION_MS);
        await(() -> readable() >= warm, "handed over to warm up");
        // Holding the dequeue threads sets them back to the last check point, which is written each second.
        Thread.sleep(SPARE_MS);
        timers.setShouldRunningDequeue(false);
    }

    private String schedule(List<Timer> work, int batch) throws Exception {
        long start = System.nanoTime();
        put(work, batch, NOW);
        double scheduled = since(start);
        await(() -> timers.getCommitQueueOffset() >= warm + work.size(), "placed in the wheel");
        double placed = since(start);
        require(store.getMaxOffsetInQueue(TimerMessageStore.TIMER_TOPIC, 0) == warm + work.size(), "timers were lost or doubled");
        return String.format(Locale.ROOT, "{\"schedule\": %.6f, \"placed\": %.6f}", scheduled, placed);
    }

    private String drain(List<Timer> work, int batch) throws Exception {
        long dueMs = System.currentTimeMillis() + work.get(0).delayMs();
        put(work, batch, dueMs);
        require(System.currentTimeMillis() < dueMs, "the timers came due while they were put; give them a longer delay");
        await(() -> timers.getCommitQueueOffset() >= warm + work.size(), "placed in the wheel");
        await(() -> System.currentTimeMillis() > dueMs + PRECISION_MS + SPARE_MS, "due");
        long start = System.nanoTime();
        timers.setShouldRunningDequeue(true);
        await(() -> readable() >= warm + work.size(), "handed over");
        double drained = since(start);
        check(work);
        return String.format(Locale.ROOT, "{\"drain\": %.6f}", drained);
    }

    /** Puts batches, each waited for, due at one time; with {@code NOW} each after its own delay from now. */
    private void put(List<Timer> work, int batch, long dueMs) {
        for (int first = 0; first < work.size(); first += batch) {
            List<CompletableFuture<PutMessageResult>> waiting = new ArrayList<>(batch);
            for (Timer timer : work.subList(first, Math.min(first + batch, work.size()))) {
                long deliverMs = dueMs == NOW ? System.currentTimeMillis() + timer.delayMs() : dueMs;
                waiting.add(store.asyncPutMessage(timerMessage(timer.body(), deliverMs)));
            }
            for (CompletableFuture<PutMessageResult> put : waiting) {
                PutMessageResult result = put.join();
                require(result.isOk(), "a put gave " + result.getPutMessageStatus());
            }
        }
    }

    /** Makes what the broker's put hook makes of a timer message: its topic and time go into properties, the wheel's topic in their place. */
    private static MessageExtBrokerInner timerMessage(byte[] body, long deliverMs) {
        long outMs = deliverMs % PRECISION_MS == 0 ? deliverMs - PRECISION_MS : deliverMs / PRECISION_MS * PRECISION_MS;
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(TimerMessageStore.TIMER_TOPIC);
        message.setQueueId(0);
        message.setBody(body);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
        MessageAccessor.putProperty(message, TimerMessageStore.TIMER_OUT_MS, Long.toString(outMs));
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_REAL_TOPIC, TOPIC);
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_REAL_QUEUE_ID, "0");
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    private long readable() {
        try {
            return store.getMaxOffsetInQueue(TOPIC, 0);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    /** Reads what the topic got behind the warm-up: every body once. */
    private void check(List<Timer> work) {
        Set<ByteBuffer> missing = new HashSet<>();
        for (Timer timer : work) {
            missing.add(ByteBuffer.wrap(timer.body()));
        }
        long offset = warm;
        while (offset < warm + work.size()) {
            GetMessageResult found = store.getMessage("check", TOPIC, 0, offset, READ_AT_ONCE, null);
            try {
                require(found.getMessageCount() > 0, "nothing can be read at offset " + offset);
                for (ByteBuffer record : found.getMessageBufferList()) {
                    MessageExt message = MessageDecoder.decode(record);
                    require(missing.remove(ByteBuffer.wrap(message.getBody())), "a message came twice, or was never put");
                }
                offset += found.getMessageCount();
            } finally {
                found.release();
            }
        }
        require(missing.isEmpty() && readable() == warm + work.size(), missing.size() + " messages are missing of " + work.size());
    }

    private static void await(BooleanSupplier done, String what) throws InterruptedException {
        long giveUp = System.nanoTime() + 300_000_000_000L;
        while (!done.getAsBoolean()) {
            require(System.nanoTime() < giveUp, "the timers were not all " + what + " after 300 s");
            Thread.sleep(1);
        }
    }

    private static List<Timer> read(Path file) throws IOException {
        try (DataInputStream in = new DataInputStream(new BufferedInputStream(Files.newInputStream(file)))) {
            int count = in.readInt();
            List<Timer> timers = new ArrayList<>(count);
            for (int row = 0; row < count; row++) {
                long delayMs = in.readLong();
                byte[] body = new byte[in.readInt()];
                in.readFully(body);
                timers.add(new Timer(delayMs, body));
            }
            return timers;
        }
    }

    private static double since(long start) {
        return (System.nanoTime() - start) / 1e9;
    }

    private static void require(boolean holds, String otherwise) {
        if (!holds) {
            System.err.println(otherwise);
            Runtime.getRuntime().halt(1);
        }
    }
}
